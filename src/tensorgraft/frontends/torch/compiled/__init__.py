"""Functions traced and compiled as a whole: `tg.jit`, lazy mode, and guards."""
