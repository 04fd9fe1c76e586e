"""The methods, one a file. A new one: write its file, name its class here, add its line to tests/suite.py."""

from typing import Annotated

from pydantic import Field

from .base import Algorithm as Algorithm
from .base import Facts as Facts
from .base import Models as Models
from .cfl import CFL
from .ditto import Ditto
from .fedavg import FedAvg
from .fedfomo import FedFOMO
from .fedper import FedPer
from .fedprox import FedProx
from .fedrep import FedRep
from .ifca import IFCA
from .local import Local
from .oracle import Oracle
from .perfedavg import PerFedAvg
from .persfl import PersFL
from .pfedbayes import PFedBayes
from .pfedme import PFedMe
from .pfedvem import PFedVEM
from .scaffold import Scaffold
from .selffl import SelfFL as SelfFL
from .selffl_augmented import SelfFLAugmented
from .ucfl import UCFL

METHODS = (
    *(Local, FedAvg, FedProx, Scaffold, Oracle),
    *(Ditto, PFedMe, PerFedAvg, FedPer, FedRep, PFedBayes),
    *(IFCA, CFL, FedFOMO),
    *(SelfFL, SelfFLAugmented),
    *(UCFL, PFedVEM, PersFL),
)

Method = Annotated[
    Local
    | FedAvg
    | FedProx
    | Scaffold
    | Oracle
    | Ditto
    | PFedMe
    | PerFedAvg
    | FedPer
    | FedRep
    | PFedBayes
    | IFCA
    | CFL
    | FedFOMO
    | SelfFL
    | SelfFLAugmented
    | UCFL
    | PFedVEM
    | PersFL,
    Field(discriminator="kind"),
]
