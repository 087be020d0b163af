//! Compares the results of two revisions from pairs of runs, by the confidence interval of their ratio.

/// Smallest relative difference that is reported as better or worse.
const EQUIVALENCE_MARGIN: f64 = 0.05;

/// Quantiles of Student's t-distribution for two-sided intervals of 95 %, for 1, 2, … degrees of freedom.
const STUDENT_T: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];

/// Maximum number of pairs from which an interval can be computed.
pub(super) const MAX_PAIRS: usize = STUDENT_T.len() + 1;

/// Outcome of a comparison of two revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonOutcome {
    /// The result is better by more than the margin.
    Better,
    /// The results differ by less than the margin.
    Equal,
    /// The result is worse by more than the margin.
    Worse,
    /// The interval contains an end of the margin, so that more runs are needed.
    Undecided,
}

/// 95 % confidence interval of the ratio of this tree's result to the other revision's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) middle: f64,
    pub(super) high: f64,
}

impl Interval {
    /// Computes the interval of the geometric mean of ratios, one for each pair of runs. `None` for fewer than two
    /// pairs, more than [`MAX_PAIRS`], or a ratio that is not positive.
    pub(super) fn confidence_interval(ratios: &[f64]) -> Option<Self> {
        let freedom = ratios.len().checked_sub(1)?;
        let quantile = STUDENT_T.get(freedom.checked_sub(1)?)?;
        if ratios
            .iter()
            .any(|ratio| !(ratio.is_finite() && *ratio > 0.0))
        {
            return None;
        }
        let count = f64::from(u32::try_from(ratios.len()).ok()?);
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let mean = logarithms.iter().sum::<f64>() / count;
        let squares: f64 = logarithms.iter().map(|one| (one - mean).powi(2)).sum();
        let half = quantile * (squares / (count - 1.0) / count).sqrt();
        Some(Self {
            low: (mean - half).exp(),
            middle: mean.exp(),
            high: (mean + half).exp(),
        })
    }

    pub(super) fn outcome(self) -> ComparisonOutcome {
        let (worse, better) = (1.0 - EQUIVALENCE_MARGIN, 1.0 + EQUIVALENCE_MARGIN);
        if self.high < worse {
            ComparisonOutcome::Worse
        } else if self.low > better {
            ComparisonOutcome::Better
        } else if self.low >= worse && self.high <= better {
            ComparisonOutcome::Equal
        } else {
            ComparisonOutcome::Undecided
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ratios: &[f64]) -> Option<ComparisonOutcome> {
        Interval::confidence_interval(ratios).map(Interval::outcome)
    }

    #[test]
    fn outcomes_need_an_interval_beside_the_margin() {
        assert_eq!(
            outcome(&[0.80, 0.82, 0.78, 0.81]),
            Some(ComparisonOutcome::Worse)
        );
        assert_eq!(
            outcome(&[1.30, 1.25, 1.28, 1.31]),
            Some(ComparisonOutcome::Better)
        );
        assert_eq!(
            outcome(&[1.01, 0.99, 1.00, 1.00]),
            Some(ComparisonOutcome::Equal)
        );
        // As far from 1 in the mean, but scattered; and close to the margin.
        assert_eq!(
            outcome(&[0.60, 1.00, 0.75, 0.90]),
            Some(ComparisonOutcome::Undecided)
        );
        assert_eq!(
            outcome(&[0.95, 0.94, 0.96, 0.95]),
            Some(ComparisonOutcome::Undecided)
        );
    }

    #[test]
    fn interval_is_that_of_students_t() {
        // Logarithms 0 and ln 2: mean ln 2 / 2, standard error ln 2 / 2, times 12.706.
        let interval = Interval::confidence_interval(&[1.0, 2.0]).unwrap();
        let half = 12.706 * 2.0_f64.ln() / 2.0;
        assert!((interval.middle - 2.0_f64.sqrt()).abs() < 1e-9);
        assert!((interval.high / interval.middle - half.exp()).abs() < 1e-6 * half.exp());
    }

    #[test]
    fn few_or_unusable_ratios_have_no_interval() {
        assert_eq!(Interval::confidence_interval(&[]), None);
        assert_eq!(Interval::confidence_interval(&[1.0]), None);
        assert_eq!(Interval::confidence_interval(&[1.0, 0.0]), None);
        assert_eq!(Interval::confidence_interval(&[1.0, f64::INFINITY]), None);
        assert_eq!(Interval::confidence_interval(&[1.0; MAX_PAIRS + 1]), None);
        assert!(Interval::confidence_interval(&[1.0; MAX_PAIRS]).is_some());
    }
}
