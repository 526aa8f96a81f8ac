"""Where the tests find the files of the project, and how they compile."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
OUTSIDE = TESTS / "outside"  # a task that is not part of the package, with its gin files
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"  # real data that may lie beside a checkout

# XLA without LLVM's optimisations, without its newer code generator and with one module a program
# compiles a small program in less than half of the time.
FAST = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)

# The task `parity` at its tiny preset, for the command line.
PARITY = ["--task", "parity", "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
