"""The only folder that touches OpenNMT-py's internals.

Whatever of it is imported first (a child process may begin with any module, to unpickle what it was sent), it is
registered before that: a module that is only partly imported could not be.
"""

from onmt_entmax import autoload

autoload.install()

import onmt  # noqa: E402, F401 - after the finder is in place
