"""`python -m deploy.server`: Flower's SuperLink for real devices, with access control."""

import sys

from deploy.server.server import main

sys.exit(main())
