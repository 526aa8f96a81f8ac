"""Shows what a run would be before it is trained: its settings, and what binds each of them."""

from lra_fnet import config
from lra_fnet.machine.terminal import Fitted
from lra_fnet.models.encoder import parameter_count
from lra_fnet.run.job import Job

_NOTES = (
    "default: of the class. derived: from the rows of the data or from other settings. scaled: "
    "the warm-up and the decay follow Run.num_steps, of which pre-training has a share."
)


def table(job: Job) -> Fitted:
    """Returns the settings of a run, under its folder and size.

    Raises:
      UserError: see `Job.load`.
    """
    experiment = job.load()
    names = job.task, job.model, job.preset, job.gin_dirs
    texts = config.texts(*names, denoise=job.denoise)
    task, run = experiment.task, experiment.run
    size = parameter_count(experiment.shapes())
    return Fitted(
        ["setting", "value", "bound in"],
        [list(setting) for setting in config.settings(texts, job.overrides)],
        title=f"{job.folder}: {size:,} parameters; {run.num_steps:,} steps of {run.batch_size} "
        f"examples of {task.max_len:,} tokens",
        notes=[_NOTES],
        words=3,
    )
