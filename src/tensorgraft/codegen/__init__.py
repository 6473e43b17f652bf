"""Programs as readable source of another framework (`tg.source`)."""
