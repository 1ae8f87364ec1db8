"""Running a policy: the loop, the clock, the guards, the modes and the flight log."""
