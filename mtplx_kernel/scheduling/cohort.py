"""mtp_cohort_experimental: cohorts that speculate together, off unless the user opts in."""

from __future__ import annotations

from mtplx_kernel.scheduling.mtp_batch import MTPBatchPolicy


class CohortPolicy(MTPBatchPolicy):
    """Forms cohorts as mtp_batch does; what they share is the decode step's.

    A pool of drafts can be kept by the name of its cohort: `Decode.cohort` is never used again.
    """

    name = "mtp_cohort_experimental"
    rule = "shared_cohorts"
