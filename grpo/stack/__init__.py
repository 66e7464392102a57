"""What every package may use: checkout, machine, hub, files, secrets, and how ranks and Ray learn about them."""
