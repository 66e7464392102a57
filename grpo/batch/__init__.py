"""From rollouts to training rows: rewards, branches, advantages, limits on lengths."""
