"""The engines that use Flower's SuperLink: `engine=ray` (simulation), `engine=superlink`."""
