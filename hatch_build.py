"""Writes the commit into a wheel and a source archive, because what is installed has no git."""

import subprocess
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the file lra_fnet/commit; a source archive has it already, a checkout does not."""

    def initialize(self, version, build_data):
        """Describes the commit as `run.provenance.commit` does; without git adds nothing."""
        if version == "editable" or Path(self.root, "lra_fnet/commit").exists():
            return
        git = ["git", "-C", self.root, "describe", "--always", "--abbrev=40", "--exclude=*"]
        described = subprocess.run([*git, "--dirty"], capture_output=True, text=True)
        if described.returncode == 0:
            file = Path(self.directory, "commit")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(described.stdout.strip())
            build_data["force_include"][str(file)] = "lra_fnet/commit"

    def finalize(self, version, build_data, artifact_path):
        """Removes the temporary file."""
        Path(self.directory, "commit").unlink(missing_ok=True)
