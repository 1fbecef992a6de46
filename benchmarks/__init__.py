"""Side by side with peers: each benchmark prints ratios of sides that alternate within one run."""
