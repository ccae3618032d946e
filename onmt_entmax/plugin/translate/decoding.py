"""Puts our translator in the places where OpenNMT-py binds its own."""

from __future__ import annotations


class LateOutput:
    """Opens the output file at the first write: a model that cannot be loaded leaves earlier predictions alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = None

    def write(self, text: str) -> int:
        """Append text."""
        if self.file is None:
            self.file = open(self.path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        return self.file.write(text)

    def flush(self) -> None:
        """Flush, and make the file exist even where nothing was written."""
        self.write("")
        self.file.flush()

    def close(self) -> None:
        """Close; nothing happens a second time."""
        if self.file is not None:
            self.file.close()


def build_translator(stock):
    def build_translator(opt, device_id=0, report_score=True, logger=None, out_file=None):
        return stock(opt, device_id, report_score, logger, LateOutput(opt.output) if out_file is None else out_file)

    return build_translator
