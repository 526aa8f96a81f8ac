"""XLA's flags for programs that run for moments only, as in tests and in the fault drill."""

import importlib.metadata

# Without LLVM's optimisations, without XLA's newer code generator and with one module a program,
# it compiles in half of the time. A process with a flag that XLA does not know is aborted.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
