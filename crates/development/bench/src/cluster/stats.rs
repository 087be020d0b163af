//! Statistics of measured values.

/// Measured values of one quantity, such as the start times of pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MeasuredSample(Vec<f64>);

impl MeasuredSample {
    pub(super) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted.get(count / 2).copied().unwrap_or(f64::NAN),
            count => sorted
                .get(count / 2 - 1..=count / 2)
                .map_or(f64::NAN, |middle| middle.iter().sum::<f64>() / 2.0),
        }
    }

    pub(super) fn worst(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| MeasuredSample(values.to_vec()).median();
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(of(&[]).is_nan());
        assert_eq!(MeasuredSample(vec![1.0, 3.0, 2.0]).worst(), 3.0);
    }
}
