//! Fault injection: delays a request, or responds in place of the application.

use std::time::Duration;

use ambit_model::{FaultStatus, HttpFault, RequestFraction};
use rand::{Rng as _, RngCore};

/// Fault that is injected into one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFault {
    /// Delay before the request is sent.
    pub delay: Option<Duration>,
    /// Status of the response to an aborted request, after the delay.
    pub abort: Option<FaultStatus>,
}

/// Returns at random whether one request belongs to the fraction `share`.
pub(super) fn draw_fraction(share: RequestFraction, rng: &mut dyn RngCore) -> bool {
    let RequestFraction {
        numerator,
        denominator,
    } = share;
    numerator >= denominator || rng.random_range(0..denominator) < numerator
}

impl InjectedFault {
    /// Determines at random, independently of each other, whether to delay and whether to abort a request; `None` if
    /// neither.
    pub(super) fn draw(of: &HttpFault, rng: &mut dyn RngCore) -> Option<Self> {
        let delay = of.delay.filter(|(_, share)| draw_fraction(*share, rng));
        let abort = of.abort.filter(|(_, share)| draw_fraction(*share, rng));
        let injected = Self {
            delay: delay.map(|(delay, _)| delay),
            abort: abort.map(|(status, _)| status),
        };
        (injected != Self::default()).then_some(injected)
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;

    fn share(numerator: u32, denominator: u32) -> RequestFraction {
        RequestFraction {
            numerator,
            denominator,
        }
    }

    #[test]
    fn delay_and_abort_are_drawn_independently_by_percentage() {
        let delay = Duration::from_secs(1);
        let fault = HttpFault {
            delay: Some((delay, share(1, 4))),
            abort: Some((FaultStatus::Http(503), share(1, 10))),
        };
        let mut rng = StdRng::seed_from_u64(1);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            let one = InjectedFault::draw(&fault, &mut rng).unwrap_or_default();
            counts[0] += u32::from(one.delay.is_some());
            counts[1] += u32::from(one.abort.is_some());
            counts[2] += u32::from(one.delay.is_some() && one.abort.is_some());
        }
        for (count, expected) in counts.into_iter().zip([2500, 1000, 250]) {
            assert!(count > expected * 8 / 10, "{counts:?}");
            assert!(count < expected * 12 / 10, "{counts:?}");
        }
    }

    #[test]
    fn percentages_of_zero_and_hundred_are_certain() {
        let of = |numerator| HttpFault {
            delay: None,
            abort: Some((FaultStatus::Grpc(14), share(numerator, 100))),
        };
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..1000 {
            assert_eq!(InjectedFault::draw(&of(0), &mut rng), None);
            let all = InjectedFault::draw(&of(100), &mut rng).unwrap();
            assert_eq!(all.abort, Some(FaultStatus::Grpc(14)));
            assert_eq!(all.delay, None);
        }
    }
}
