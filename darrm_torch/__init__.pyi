"""What `darrm_torch` exports, and where each name lives: the one list, for type checkers and for lazy loading."""

from . import federated as federated, lightning as lightning
from .auditing import Audit as Audit, PipelineAudit as PipelineAudit, audit as audit, audit_pipeline as audit_pipeline
from .cost_plots import plot_audit as plot_audit, plot_ledger as plot_ledger, plot_totals as plot_totals
from .errors import (
    BudgetExceeded as BudgetExceeded,
    DarrmError as DarrmError,
    InvalidArgument as InvalidArgument,
    LabelWarning as LabelWarning,
    LedgerError as LedgerError,
    PrivacyViolation as PrivacyViolation,
    UnprovenPrivacy as UnprovenPrivacy,
)
from .labels.accuracy import AccuracyEstimate as AccuracyEstimate
from .labels.distributed import DistributedEnsemble as DistributedEnsemble
from .labels.ensemble import PrivateMajorityEnsemble as PrivateMajorityEnsemble
from .labels.labeler import PrivateLabeler as PrivateLabeler
from .labels.ledger import PrivacyLedger as PrivacyLedger
from .labels.randomized_votes import RandomizedVotes as RandomizedVotes
from .labels.stored import StoredTeacher as StoredTeacher, label_loader as label_loader
from .labels.validation import validate as validate
from .labels.vote_files import VoteBatch as VoteBatch, VoteFile as VoteFile
from .labels.voters import Voter as Voter
from .mechanisms.base import Mechanism as Mechanism
from .mechanisms.confident import ConfidentGNMax as ConfidentGNMax
from .mechanisms.counts import accuracy_interval as accuracy_interval, private_counts as private_counts
from .mechanisms.darrm import DaRRM as DaRRM
from .mechanisms.data_dependent import (
    DataDependentGuarantee as DataDependentGuarantee,
    DataDependentLoss as DataDependentLoss,
)
from .mechanisms.gnmax import GNMax as GNMax
from .mechanisms.interactive import InteractiveGNMax as InteractiveGNMax
from .mechanisms.laplace import LNMax as LNMax
from .mechanisms.noise_free import MeanProbabilities as MeanProbabilities, NoiseFreeMajority as NoiseFreeMajority
from .mechanisms.plurality import (
    SelfBoundingPlurality as SelfBoundingPlurality,
    VotePrivatePlurality as VotePrivatePlurality,
)
from .mechanisms.selection import (
    ExponentialMechanism as ExponentialMechanism,
    PermuteAndFlip as PermuteAndFlip,
    RandomizedPlurality as RandomizedPlurality,
)
from .noise.certificate import (
    Certificate as Certificate,
    WorstCase as WorstCase,
    certify as certify,
    label_profile as label_profile,
)
from .noise.function import (
    NoiseFunction as NoiseFunction,
    constant_noise as constant_noise,
    double_subsampling_noise as double_subsampling_noise,
    self_bounding_noise as self_bounding_noise,
    subsampling_noise as subsampling_noise,
)
from .noise.plurality_priors import PluralityVotes as PluralityVotes
from .noise.priors import BetaVotes as BetaVotes, IndependentVotes as IndependentVotes, SharedVotes as SharedVotes
from .noise.program import optimize_noise as optimize_noise
from .noise.self_bounding import (
    SelfBoundingCertificate as SelfBoundingCertificate,
    self_bounding_allowance as self_bounding_allowance,
)
from .noise.store import fetch_noise as fetch_noise
from .planning.design import Design as Design, DesignRow as DesignRow, design as design
from .planning.expectation import expected_accuracy as expected_accuracy, expected_agreement as expected_agreement
from .planning.families import strongest_mechanism as strongest_mechanism
from .planning.needs import TeachersNeeded as TeachersNeeded
from .planning.one_model import OneModel as OneModel
from .planning.ranking import Plan as Plan, plan as plan
from .planning.strategies import Strategy as Strategy
from .plots import (
    plot_frontier as plot_frontier,
    plot_label_profile as plot_label_profile,
    plot_noise as plot_noise,
    plot_plurality as plot_plurality,
)
from .privacy.allocation import RandomAllocation as RandomAllocation
from .privacy.allocation_prices import (
    allocated_delta as allocated_delta,
    allocated_epsilon as allocated_epsilon,
    distinct_voters as distinct_voters,
    jury_delta as jury_delta,
    jury_epsilon as jury_epsilon,
    self_bounding_delta as self_bounding_delta,
    self_bounding_epsilon as self_bounding_epsilon,
)
from .privacy.calibration import calibrate_noise as calibrate_noise
from .privacy.composition import (
    as_if_redrawn as as_if_redrawn,
    general_composition as general_composition,
    optimal_composition as optimal_composition,
    simple_composition as simple_composition,
)
from .privacy.guarantees import PrivacyGuarantee as PrivacyGuarantee
from .privacy.profiles import PrivacyProfile as PrivacyProfile
from .privacy.self_bounding_prices import (
    exact_self_bounding_delta as exact_self_bounding_delta,
    exact_self_bounding_epsilon as exact_self_bounding_epsilon,
)
from .privacy.totals import (
    PrivacyRoute as PrivacyRoute,
    TotalPrivacy as TotalPrivacy,
    total_privacy as total_privacy,
)
from .privacy.tuning_prices import (
    RandomRuns as RandomRuns,
    tuning_delta as tuning_delta,
    tuning_epsilon as tuning_epsilon,
)
from .privacy.validation import PrivateValidation as PrivateValidation
from .teachers.adapters import adapter_teachers as adapter_teachers
from .teachers.checkpoints import load_teacher as load_teacher
from .teachers.dp_sgd import TrainingSettings as TrainingSettings, ignored_records as ignored_records
from .teachers.independence import check_independent as check_independent
from .teachers.loaders import declared_loader as declared_loader
from .teachers.reading import (
    PrivacyReading as PrivacyReading,
    read_privacy as read_privacy,
    read_teachers as read_teachers,
)
from .teachers.shards import (
    Shards as Shards,
    assign_shards as assign_shards,
    contiguous_shards as contiguous_shards,
    forget_draws as forget_draws,
)
from .teachers.training import train_teachers as train_teachers
from .teachers.tuning import TunedTeachers as TunedTeachers, tune_teachers as tune_teachers
from .teachers.watching import watch_training as watch_training

__version__: str
