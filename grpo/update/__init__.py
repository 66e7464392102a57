"""The policy update: which forward passes are made, the loss, importance correction, the reference."""
