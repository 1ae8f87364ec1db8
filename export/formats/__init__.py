"""What other runtimes read: the same contract in their words, at full precision."""
