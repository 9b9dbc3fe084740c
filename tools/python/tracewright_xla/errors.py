"""What can go wrong, by name: each message says what, where, and what to do."""


class TracewrightError(Exception):
    """Any error of this package."""


class ManifestError(TracewrightError):
    """The export directory is none, or of another version."""


class CheckpointError(TracewrightError):
    """A file of the checkpoint is missing, or is not the one that was exported."""


class MeshError(TracewrightError):
    """The devices are not those of the mesh."""


class ProcessError(TracewrightError):
    """A process of the group is missing, differs from the others or died."""


class PromptError(TracewrightError):
    """The prompt, or what is asked for beside it, does not fit the program."""


class LogitsError(TracewrightError):
    """The network answered what no token can be chosen by: weights are damaged, or numbers overflowed."""
