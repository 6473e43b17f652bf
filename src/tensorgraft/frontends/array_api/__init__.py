"""The Array API standard (2025.12) over every backend: `import tensorgraft.array_api as xp`."""
