"""``octavo capture``: real traffic as a trace of arrivals, lengths and sharing, without its text."""
