"""All faults by name."""

from faults.caches import CACHE_FAULTS
from faults.draws import DRAW_FAULTS
from faults.forms import FORM_FAULTS
from faults.kernels import KERNEL_FAULTS
from faults.rules import RULE_FAULTS

FAULTS = RULE_FAULTS | DRAW_FAULTS | CACHE_FAULTS | KERNEL_FAULTS | FORM_FAULTS
