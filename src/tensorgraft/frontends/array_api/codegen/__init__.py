"""Functions of the Array API standard as programs that `tg.source` writes down."""
