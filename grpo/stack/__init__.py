"""What every room may use: the checkout, the machine, the hub, files, secrets, how ranks and Ray are told of them."""
