"""The functions of the Array API standard, by its chapters."""
