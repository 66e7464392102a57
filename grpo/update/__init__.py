"""The policy update: its forward passes, the loss, importance correction, the reference."""
