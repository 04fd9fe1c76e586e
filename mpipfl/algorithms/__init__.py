"""The methods, one a file. A new one: write its file, name its class here, add its line to tests/suite.py."""

from typing import Annotated

from pydantic import Field

from .base import Algorithm as Algorithm
from .base import Facts as Facts
from .base import Models as Models
from .fedavg import FedAvg
from .fedprox import FedProx
from .local import Local
from .oracle import Oracle

METHODS = (Local, FedAvg, FedProx, Oracle)

Method = Annotated[Local | FedAvg | FedProx | Oracle, Field(discriminator="kind")]
