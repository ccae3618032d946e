"""Tables, figures and the page of a run. Reads files only (see docs/formats.md), never a model."""
