"""The seconds after which a silent node counts as offline, or its process as gone."""

INTERVAL = 60.0  # a node without a heartbeat for twice this time counts as offline
ONLINE_SECONDS = 2 * INTERVAL  # for which a node that has ended counts as online
GONE = ONLINE_SECONDS  # without a pull; then a process is gone unless it works on a message
