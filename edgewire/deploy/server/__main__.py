"""`python -m edgewire.deploy.server`: Flower's SuperLink for real devices, with access control."""

import sys

from edgewire.deploy.server.server import main

sys.exit(main())
