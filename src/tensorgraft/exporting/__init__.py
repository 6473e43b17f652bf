"""Export of programs to files: `tg.export`. A file is made by the exporter of the framework that reads it, and run by
that framework before it is put in its place."""
