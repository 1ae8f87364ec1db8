"""Robot drivers: each module here offers one robot behind the `Robot` protocol."""
