"""Programs that show and measure wakeloop: the load generator and the side-by-side demo of ``make demo``."""
