"""The engines that use Flower's SuperLink: `engine=ray` (simulation), `engine=superlink`."""

from edgewire.machine.surroundings import find_home

find_home()
