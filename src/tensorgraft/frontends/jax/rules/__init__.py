"""The rules of JAX's primitives, by area. Importing a module registers its rules."""
