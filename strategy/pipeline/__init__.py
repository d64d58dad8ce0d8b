"""One model, its layers on different devices: the schedule, who holds what, its messages."""
