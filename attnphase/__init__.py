"""attnphase: a solvable phase transition between positional and semantic attention."""

from attnphase.baseline import LinearBaseline, linear_baseline
from attnphase.diagram import BranchGrid, PhaseDiagram, phase_diagram, read_diagram
from attnphase.message_passing import message_passing
from attnphase.model import Model
from attnphase.phases import (
    Spinodal,
    Threshold,
    baseline_alpha,
    critical_alpha,
    end_alpha,
    onset_alpha,
    spinodal_alpha,
)
from attnphase.proximal import ConvergenceError
from attnphase.solver import FixedPoint, solve, trace
from attnphase.state_evolution import Conjugates, Overlaps
from attnphase.training import (
    Dataset,
    Trained,
    adam,
    gradient_descent,
    minimize,
    sample,
)

__version__ = "0.1.0"

__all__ = [
    "BranchGrid",
    "Conjugates",
    "ConvergenceError",
    "Dataset",
    "FixedPoint",
    "LinearBaseline",
    "Model",
    "Overlaps",
    "PhaseDiagram",
    "Spinodal",
    "Threshold",
    "Trained",
    "adam",
    "baseline_alpha",
    "critical_alpha",
    "end_alpha",
    "gradient_descent",
    "linear_baseline",
    "message_passing",
    "minimize",
    "onset_alpha",
    "phase_diagram",
    "read_diagram",
    "sample",
    "solve",
    "spinodal_alpha",
    "trace",
]
