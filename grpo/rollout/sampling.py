"""What a rollout brings back to the trainer: rewards and numeric logs that are complete for every sample."""

import logging

logger = logging.getLogger("openrlhf.grpo.rollout")
