use super::*;
use proptest::prelude::*;

/// A time in 2023.
const NOW: Nanos = 1_700_000_000_000_000_000;
const SECOND: Nanos = 1_000_000_000;

fn fixed(budget: u64, window: Nanos) -> Limit {
    Limit::fixed(budget, window)
}

fn sliding(budget: u64, window: Nanos) -> Limit {
    Limit::sliding(budget, window).expect("a window that ends")
}

fn gcra(budget: u64, window: Nanos, burst: u64) -> Limit {
    Limit::gcra(budget, window, burst).expect("a window that ends")
}

/// The limiter that is stored for a key.
#[derive(Default)]
struct Stored(Option<Limiter>);

impl Stored {
    fn decide(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        let (decision, store) = Limiter::decide(self.0.as_ref(), limit, cost, now);
        self.0 = store.or(self.0);
        decision
    }

    fn peek(&self, limit: &Limit, cost: u64, now: Nanos) -> Decision {
        Limiter::decide(self.0.as_ref(), limit, cost, now).0
    }

    fn limiter(&self) -> &Limiter {
        self.0.as_ref().expect("a limiter was stored")
    }

    /// Takes units one by one until a request is refused. Returns their number.
    fn drain(&mut self, limit: &Limit, now: Nanos) -> u64 {
        (0..).take_while(|_| self.decide(limit, 1, now).allowed).count() as u64
    }
}

/// Returns `count` numbers, one for each nanosecond from `now` on: the units that are used then,
/// multiplied by the window so that the numbers are integers. Computes them by the algorithm's
/// definition from all units that were ever taken.
fn used_by_definition(limit: &Limit, takes: &[(Nanos, u64)], now: Nanos, count: u64) -> Vec<u128> {
    let window = limit.window();
    match limit.algorithm() {
        Algorithm::Fixed => {
            let mut current = Vec::new();
            for &(at, cost) in takes {
                match current.first() {
                    Some(&(start, _)) if window == 0 || at < start + window => {}
                    _ => current.clear(),
                }
                current.push((at, cost));
            }
            let end = current.first().map_or(0, |(start, _)| start + window);
            let used = current.iter().map(|(_, cost)| u128::from(cost * window.max(1))).sum();
            let counts = |at| window == 0 || at < end;
            (now..now + count).map(|at| if counts(at) { used } else { 0 }).collect()
        }
        Algorithm::Sliding => {
            let sum = |takes: &[(Nanos, u64)], from: Nanos| -> u64 {
                let inside = |at: Nanos| (from..from + window).contains(&at);
                takes.iter().filter(|(at, _)| inside(*at)).map(|(_, cost)| cost).sum()
            };
            let used = |takes: &[(Nanos, u64)], first: Nanos, at: Nanos| -> u128 {
                let elapsed = (at - first) % window;
                let current = sum(takes, at - elapsed);
                let previous =
                    if at - elapsed > first { sum(takes, at - elapsed - window) } else { 0 };
                u128::from(previous * (window - elapsed) + current * window)
            };
            // Windows follow each other from `first` on, until no units are used.
            let mut first = 0;
            for (index, &(at, _)) in takes.iter().enumerate() {
                if index == 0 || used(&takes[..index], first, at) == 0 {
                    first = at;
                }
            }
            let first = first.min(now);
            (now..now + count).map(|at| used(takes, first, at)).collect()
        }
        Algorithm::Gcra => {
            let mut at = takes.first().map_or(now, |(at, _)| *at);
            let (mut level, mut takes, mut levels) = (0u128, takes, Vec::new());
            while at < now + count {
                while let Some(((_, cost), rest)) = takes.split_first().filter(|(t, _)| t.0 == at) {
                    level += u128::from(cost * window);
                    takes = rest;
                }
                if at >= now {
                    levels.push(level);
                }
                level = level.saturating_sub(u128::from(limit.budget()));
                at += 1;
            }
            levels
        }
    }
}

fn small_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (0..9u64, 0..40u64).prop_map(|(budget, window)| fixed(budget, window)),
        (0..9u64, 1..40u64).prop_map(|(budget, window)| sliding(budget, window)),
        (0..9u64, 1..40u64, 0..9u64)
            .prop_map(|(budget, window, burst)| gcra(budget, window, burst)),
    ]
}

fn any_limit(number: BoxedStrategy<u64>, window: BoxedStrategy<u64>) -> BoxedStrategy<Limit> {
    (0..3, number.clone(), window, number)
        .prop_map(|(algorithm, budget, window, burst)| match algorithm {
            0 => fixed(budget, window),
            1 => sliding(budget, window.max(1)),
            _ => gcra(budget, window.max(1), burst),
        })
        .boxed()
}

/// Limits, units and times of all sizes that real clients use.
fn real_limit() -> BoxedStrategy<Limit> {
    any_limit(
        prop_oneof![0..10u64, 0..1_000_000u64].boxed(),
        prop_oneof![0..10u64, 0..1000u64, 0..10 * SECOND].boxed(),
    )
}

fn extreme() -> BoxedStrategy<u64> {
    let near = prop::sample::select(vec![0, 1, 2, 3, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX]);
    prop_oneof![4 => near, 1 => any::<u64>()].boxed()
}

/// Calls of a limiter other than a decision.
#[derive(Clone, Debug)]
enum Call {
    Add(u64),
    GiveBack(u64),
    EndAt(Option<u64>),
}

fn call(number: BoxedStrategy<u64>, end: BoxedStrategy<u64>) -> impl Strategy<Value = Call> {
    prop_oneof![
        number.clone().prop_map(Call::Add),
        number.prop_map(Call::GiveBack),
        prop::option::of(end).prop_map(Call::EndAt),
    ]
}

impl Call {
    fn apply(&self, limiter: &mut Limiter, now: Nanos) {
        match *self {
            Call::Add(units) => limiter.add(units, now),
            Call::GiveBack(units) => limiter.give_back(units, now),
            Call::EndAt(end) => limiter.end_at(end, now),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn decisions_agree_with_the_definitions(
        limit in small_limit(),
        steps in prop::collection::vec((prop_oneof![0..3u64, 0..50u64], 0..6u64), 1..40),
    ) {
        let (mut stored, mut takes, mut now) = (Stored::default(), Vec::new(), 1000);
        let capacity = match (limit.algorithm(), limit.budget()) {
            (Algorithm::Gcra, 1..) => limit.burst(),
            (_, budget) => budget,
        };
        // Longer than any wait: a bucket of 8 units refills in 8 × 39 ns at most, and a refused
        // request adds nothing.
        let horizon = 400;
        for (pause, cost) in steps {
            now += pause;
            let parts = |units: u64| u128::from(units * limit.window().max(1));
            let decision = stored.decide(&limit, cost, now);
            let used = used_by_definition(&limit, &takes, now, horizon);
            let passes = |used: &u128| cost == 0 || used + parts(cost) <= parts(capacity);
            prop_assert_eq!(decision.allowed, passes(&used[0]));
            prop_assert_eq!(decision.retry, used.iter().position(passes).map(|at| at as u64));
            if decision.allowed && cost > 0 {
                takes.push((now, cost));
            }
            let used = used_by_definition(&limit, &takes, now, horizon);
            let free = parts(capacity).saturating_sub(used[0]);
            prop_assert_eq!(u128::from(decision.remaining), free / parts(1));
            let reset = used.iter().position(|used| *used == 0);
            prop_assert_eq!(decision.reset, reset.map(|at| at as u64));
        }
    }

    /// However the limits of the requests change, no unit must be lost or invented, a request must
    /// pass exactly if it fits, and the waits must be exact.
    #[test]
    fn changed_parameters_keep_the_used_units_and_waits_are_exact(
        steps in prop::collection::vec(
            (
                real_limit(),
                prop_oneof![0..10u64, 0..1_000_000u64],
                prop_oneof![0..10u64, 0..1000u64, 0..SECOND],
                prop::option::weighted(
                    0.2,
                    call((0..100_000u64).boxed(), (NOW..NOW + 20 * SECOND).boxed()),
                ),
            ),
            1..20,
        ),
    ) {
        let (mut stored, mut now) = (Stored::default(), NOW);
        for (limit, cost, pause, call) in steps {
            now += pause;
            if let (Some(call), Some(limiter)) = (call, &mut stored.0) {
                call.apply(limiter, now);
            }
            let before = stored.0;
            let used = before.map_or(0, |limiter| limiter.used(now));
            let capacity = limit.capacity();
            let decision = stored.decide(&limit, cost, now);
            prop_assert_eq!(decision.allowed, cost == 0 || used + cost <= capacity);
            let taken = if decision.allowed { cost } else { 0 };
            prop_assert_eq!(decision.remaining, capacity.saturating_sub(used + taken));
            if taken > 0 {
                prop_assert_eq!(stored.limiter().used(now), used + cost);
                prop_assert_eq!(stored.limiter().limit(), limit);
            } else if stored.0 != before {
                // A refused request has replaced the limit, because its units become free sooner.
                let (old, room) = (before.expect("a limiter"), capacity - cost);
                prop_assert!(!decision.allowed);
                prop_assert_eq!(stored.limiter().limit(), limit);
                prop_assert_eq!(stored.limiter().used(now), used);
                let old = old.advanced(now).meter().until(room, now).unwrap_or(Nanos::MAX);
                prop_assert!(decision.retry.unwrap_or(Nanos::MAX) < old);
            }
            match decision.retry {
                Some(0) => prop_assert!(decision.allowed),
                Some(wait) => {
                    prop_assert!(stored.peek(&limit, cost, now + wait).allowed);
                    prop_assert!(!stored.peek(&limit, cost, now + wait - 1).allowed);
                }
                None => prop_assert!(!stored.peek(&limit, cost, u64::MAX).allowed),
            }
            let Some(limiter) = stored.0 else { continue };
            prop_assert_eq!(decision.reset, limiter.reset(now));
            match decision.reset {
                Some(0) => prop_assert!(limiter.is_new(now)),
                Some(wait) => {
                    prop_assert!(limiter.is_new(now + wait));
                    prop_assert!(!limiter.is_new(now + wait - 1));
                }
                None => prop_assert!(!limiter.is_new(u64::MAX)),
            }
        }
    }

    /// A refused request must not make any other request wait longer, for however many units.
    #[test]
    fn refusals_free_no_units_later(
        first in real_limit(),
        used in 1..1000u64,
        steps in prop::collection::vec((real_limit(), 1..1000u64, 0..SECOND), 1..20),
        units in prop::collection::vec(0..1000u64, 1..5),
    ) {
        let (mut stored, mut now) = (Stored(Some(Limiter::with_used(&first, used, None, NOW))), NOW);
        for (limit, cost, pause) in steps {
            now += pause;
            let before = stored.limiter().advanced(now);
            if stored.decide(&limit, cost, now).allowed {
                continue;
            }
            for &units in &units {
                let [old, new] = [before, stored.limiter().advanced(now)]
                    .map(|limiter| limiter.meter().until(units, now).unwrap_or(Nanos::MAX));
                // Rounding may add a nanosecond.
                prop_assert!(new <= old.saturating_add(1), "{units}: {new} after {old}");
            }
        }
    }

    #[test]
    fn no_interval_admits_more_than_its_bound(
        limit in small_limit(),
        steps in prop::collection::vec((prop_oneof![Just(0u64), 0..4u64, 0..50u64], 1..4u64), 1..200),
    ) {
        let (mut stored, mut takes, mut now) = (Stored::default(), Vec::new(), NOW);
        let (budget, window) = (limit.budget(), limit.window());
        for (pause, cost) in steps {
            now += pause;
            if stored.decide(&limit, cost, now).allowed {
                takes.push((now, cost));
            }
        }
        for (index, (start, _)) in takes.iter().enumerate() {
            let mut admitted = 0;
            for (at, cost) in &takes[index..] {
                admitted += cost;
                // The length of the shortest interval that holds the requests at `start` and at
                // `at`.
                let length = at - start;
                match limit.algorithm() {
                    Algorithm::Fixed if window == 0 => prop_assert!(admitted <= budget),
                    Algorithm::Fixed if length < window => prop_assert!(admitted <= 2 * budget),
                    Algorithm::Sliding if length < window => prop_assert!(admitted < 2 * budget),
                    Algorithm::Gcra => {
                        prop_assert!(admitted <= limit.burst() + length * budget / window);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn gcra_scales_its_level_to_a_new_window_and_rounds_up(
        used in 1..1000u64, window in 1..1000u64, budget in 1..1000u64,
        elapsed in 0..1000u64, new_window in 1..1000u64,
    ) {
        let level = |limiter: &Limiter| match limiter.meter().words() {
            [.., low, 0] => low,
            words => panic!("a level beyond 64 bits: {words:?}"),
        };
        let old = Limiter::with_used(&gcra(budget, window, 1), used, None, NOW);
        let old = old.advanced(NOW + elapsed);
        let (before, mut new) = (level(&old), old);
        new.adopt(&gcra(budget, new_window, 1), NOW + elapsed);
        let after = level(&new);
        prop_assert!(after * window >= before * new_window);
        prop_assert!(before == 0 || (after - 1) * window < before * new_window);
    }

    #[test]
    fn a_clock_that_was_set_back_frees_nothing_and_extends_no_window(
        limit in real_limit(),
        used in 1..1_000_000u64,
        cost in 1..1_000_000u64,
        back in prop_oneof![1..1000u64, 1..100 * SECOND],
    ) {
        let limiter = Limiter::with_used(&limit, used, None, NOW);
        let earlier = NOW - back;
        prop_assert_eq!(limiter.used(earlier), used);
        prop_assert_eq!(limiter.reset(earlier), limiter.reset(NOW));
        let (decision, stored) = Limiter::decide(Some(&limiter), &limit, cost, earlier);
        let expected = Limiter::decide(Some(&limiter), &limit, cost, NOW).0;
        prop_assert_eq!(decision, expected);
        let stored = stored.expect("the earlier time is stored");
        let taken = if decision.allowed { cost } else { 0 };
        prop_assert_eq!(stored, Limiter::with_used(&limit, used + taken, None, earlier));
        prop_assert_eq!(Limiter::decide(Some(&limiter), &limit, 0, earlier).1, None);
    }

    #[test]
    fn no_argument_panics(
        words in prop::array::uniform6(extreme()),
        steps in prop::collection::vec(
            (any_limit(extreme(), extreme()), extreme(), extreme(), call(extreme(), extreme())),
            1..10,
        ),
        end in prop::option::of(extreme()),
    ) {
        let mut limiters: Vec<Limiter> = vec![State::Fixed(FixedWindow::from_words(words))]
            .into_iter()
            .chain(SlidingWindow::from_words(words).map(State::Sliding))
            .chain(Gcra::from_words(words).map(State::Gcra))
            .map(Limiter)
            .collect();
        limiters.push(Limiter::with_used(&steps[0].0, words[0], end, words[1]));
        for limiter in limiters {
            let mut stored = Stored(Some(limiter));
            for (limit, cost, now, call) in &steps {
                let used = u128::from(stored.limiter().used(*now));
                let decision = stored.decide(limit, *cost, *now);
                let fits = used + u128::from(*cost) <= u128::from(limit.capacity());
                prop_assert_eq!(decision.allowed, *cost == 0 || fits);
                let mut limiter = *stored.limiter();
                prop_assert_eq!(decision.reset, limiter.reset(*now));
                let mut bytes = [0; Limiter::ENCODED_MAX];
                prop_assert_eq!(Limiter::decode(limiter.encode(&mut bytes)), Some(limiter));
                call.apply(&mut limiter, *now);
                stored.0 = Some(limiter);
            }
        }
    }

    #[test]
    fn a_decoded_limiter_encodes_to_the_same_bytes(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0..5u8, prop::sample::select(vec![40, 48]), any::<u8>()).prop_flat_map(
                |(algorithm, length, high)| {
                    prop::collection::vec(any::<u8>(), length).prop_map(move |mut bytes| {
                        bytes.insert(0, algorithm);
                        // Clears bits of the level's high bytes, so that some levels are within the
                        // limit.
                        bytes.iter_mut().skip(41).step_by(2).for_each(|byte| *byte &= high);
                        bytes
                    })
                }
            ),
        ],
    ) {
        if let Some(limiter) = Limiter::decode(&bytes) {
            let mut out = [0; Limiter::ENCODED_MAX];
            prop_assert_eq!(limiter.encode(&mut out), &bytes);
        }
    }
}

#[test]
fn encoded_limiters_have_known_bytes_and_nothing_else_is_decoded() {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let cases = [
        (fixed(10, 60), [vec![1], words(&[10, 60, NOW, 60, 7])].concat()),
        (sliding(10, 60), [vec![2], words(&[10, 60, NOW, 0, 7])].concat()),
        (gcra(10, 60, 20), [vec![3], words(&[10, 60, 20, NOW, 7 * 60, 0])].concat()),
    ];
    for (limit, expected) in cases {
        let limiter = Limiter::with_used(&limit, 7, None, NOW);
        let mut out = [0xff; Limiter::ENCODED_MAX];
        let bytes = limiter.encode(&mut out).to_vec();
        assert_eq!(bytes, expected);
        assert_eq!(Limiter::decode(&bytes), Some(limiter));
        assert_eq!(limiter.limit(), limit);
        for length in 0..bytes.len() {
            assert_eq!(Limiter::decode(&bytes[..length]), None);
        }
        assert_eq!(Limiter::decode(&[&bytes[..], &[0]].concat()), None);
        for algorithm in [0, 4, 255] {
            assert_eq!(Limiter::decode(&[&[algorithm], &bytes[1..]].concat()), None);
        }
    }
    let without_window = [vec![2], words(&[10, 0, NOW, 0, 7])].concat();
    assert_eq!(Limiter::decode(&without_window), None);
    let without_window = [vec![3], words(&[10, 0, 20, NOW, 0, 0])].concat();
    assert_eq!(Limiter::decode(&without_window), None);
    let beyond_all_units = [vec![3], words(&[10, 60, 20, NOW, 0, 60])].concat();
    assert_eq!(Limiter::decode(&beyond_all_units), None);
}

#[test]
fn a_missing_limiter_has_all_units_and_refuses_costs_that_can_never_pass() {
    for limit in [fixed(5, 9), fixed(5, 0), sliding(5, 9), gcra(2, 9, 5)] {
        let (decision, stored) = Limiter::decide(None, &limit, 0, NOW);
        let as_new = Decision { allowed: true, remaining: 5, retry: Some(0), reset: Some(0) };
        assert_eq!((decision, stored), (as_new, None));
        let (decision, stored) = Limiter::decide(None, &limit, 6, NOW);
        assert_eq!((decision, stored), (Decision { allowed: false, retry: None, ..as_new }, None));
    }
    for limit in [fixed(0, 9), sliding(0, 9), gcra(0, 9, 5)] {
        let decision = Limiter::decide(None, &limit, 1, NOW).0;
        assert_eq!((decision.allowed, decision.remaining, decision.retry), (false, 0, None));
    }
    assert_eq!(Limit::sliding(1, 0), None);
    assert_eq!(Limit::gcra(1, 0, 1), None);
}

#[test]
fn a_fixed_window_admits_exactly_its_budget() {
    let (limit, mut stored) = (fixed(7, 10), Stored::default());
    for window in 0..100 {
        let admitted: u64 = (0..10).map(|at| stored.drain(&limit, NOW + window * 10 + at)).sum();
        assert_eq!(admitted, 7);
    }
}

#[test]
fn a_new_window_length_counts_from_the_next_fixed_window_on() {
    let mut stored = Stored::default();
    stored.decide(&fixed(5, 10), 1, NOW);
    let decision = stored.decide(&fixed(8, 100), 1, NOW + 4);
    assert_eq!((decision.remaining, decision.reset), (6, Some(6)));
    assert_eq!(stored.decide(&fixed(8, 100), 1, NOW + 10).reset, Some(100));
}

#[test]
fn gcra_never_drifts() {
    // The limit is 3 units per second, and a request comes every 7777777 ns.
    let (limit, mut stored, step) = (gcra(3, SECOND, 3), Stored::default(), 7_777_777);
    let admitted = (0..1_000_000u64)
        .filter(|at| stored.decide(&limit, 1, NOW + at * step).allowed)
        .count() as u64;
    assert_eq!(admitted, 3 + 999_999 * step * 3 / SECOND);

    // The limit is 3 units in 10 ns, and a request comes every 7 ns.
    let (limit, mut stored) = (gcra(300_000_000, SECOND, 10), Stored::default());
    let mut admitted = 0;
    for at in 0..100_000 {
        admitted += stored.drain(&limit, NOW + at * 7);
        assert_eq!(admitted, 10 + at * 7 * 3 / 10);
    }
}

#[test]
fn added_units_are_never_refused_and_units_given_back_stop_at_zero() {
    for limit in [fixed(5, 10), sliding(5, 10), gcra(5, 10, 5)] {
        let mut limiter = Limiter::with_used(&limit, 4, None, NOW);
        limiter.add(3, NOW);
        assert_eq!(limiter.used(NOW), 7);
        let decision = Limiter::decide(Some(&limiter), &limit, 0, NOW).0;
        assert_eq!((decision.allowed, decision.remaining), (true, 0));
        limiter.add(u64::MAX, NOW);
        assert_eq!(limiter.used(NOW), u64::MAX);
        limiter.give_back(u64::MAX - 1, NOW);
        assert_eq!(limiter.used(NOW), 1);
        limiter.give_back(2, NOW);
        assert!(limiter.is_new(NOW));
        // Neither the units given back nor a window that is over may shorten the next window.
        limiter.add(5, NOW + 9);
        assert_eq!(limiter, Limiter::with_used(&limit, 5, None, NOW + 9));
        limiter.add(5, NOW + 9 + 25);
        assert_eq!(limiter, Limiter::with_used(&limit, 5, None, NOW + 9 + 25));
    }
}

#[test]
fn a_sliding_window_gives_back_its_own_units_first() {
    let mut limiter = Limiter::with_used(&sliding(9, 10), 6, None, NOW);
    limiter.add(2, NOW + 15);
    assert_eq!(limiter.used(NOW + 15), 3 + 2);
    limiter.give_back(4, NOW + 15);
    assert_eq!(limiter.used(NOW + 15), 2);
    assert_eq!(limiter.reset(NOW + 15), Some(5));
}

#[test]
fn end_at_moves_the_end_within_the_limit() {
    let mut limiter = Limiter::with_used(&fixed(9, 10), 6, None, NOW);
    limiter.end_at(Some(NOW + 500), NOW + 2);
    assert_eq!((limiter.used(NOW + 501 - 2), limiter.reset(NOW + 2)), (6, Some(498)));
    assert_eq!(limiter.limit(), fixed(9, 10));
    limiter.end_at(None, NOW + 3);
    assert_eq!((limiter.used(u64::MAX), limiter.reset(NOW + 3)), (6, None));

    let mut limiter = Limiter::with_used(&sliding(9, 10), 6, None, NOW);
    limiter.end_at(Some(NOW + 4), NOW + 2);
    assert_eq!(limiter.reset(NOW + 2), Some(2 + 10));
    limiter.end_at(Some(NOW + 500), NOW + 3);
    assert_eq!(limiter.reset(NOW + 3), Some(10 + 10));
    limiter.end_at(None, NOW + 4);
    assert_eq!(limiter.reset(NOW + 4), Some(9 + 10));

    let mut limiter = Limiter::with_used(&gcra(2, 10, 9), 6, None, NOW);
    limiter.end_at(Some(NOW + 21), NOW + 1);
    assert_eq!((limiter.used(NOW + 1), limiter.reset(NOW + 1)), (4, Some(20)));
    limiter.end_at(Some(NOW + 500), NOW + 1);
    assert_eq!((limiter.used(NOW + 1), limiter.reset(NOW + 1)), (9, Some(45)));
    limiter.add(3, NOW + 1);
    limiter.end_at(Some(NOW + 500), NOW + 1);
    assert_eq!(limiter.used(NOW + 1), 12);
    limiter.end_at(None, NOW + 1);
    assert_eq!(limiter.used(NOW + 1), 12);

    let mut limiter = Limiter::with_used(&gcra(0, 10, 9), 6, None, NOW);
    limiter.end_at(Some(NOW + 500), NOW + 1);
    assert_eq!((limiter.used(NOW + 1), limiter.reset(NOW + 1)), (6, None));

    for limit in [fixed(9, 10), fixed(9, 0), sliding(9, 10), gcra(9, 10, 9)] {
        let mut limiter = Limiter::with_used(&limit, 6, None, NOW);
        limiter.end_at(Some(NOW), NOW);
        assert!(limiter.is_new(NOW));
    }
}

#[test]
fn a_plain_number_becomes_a_limiter_with_its_end() {
    let used = |limit, end| Limiter::with_used(&limit, 6, end, NOW);
    assert_eq!(used(fixed(9, 10), Some(NOW + 700)).reset(NOW), Some(700));
    assert_eq!(used(fixed(9, 0), None).reset(NOW), None);
    assert_eq!(used(sliding(9, 10), Some(NOW + 7)).reset(NOW), Some(17));
    assert_eq!(used(gcra(3, 10, 9), Some(NOW + 700)).reset(NOW), Some(20));
    for limit in [fixed(9, 10), sliding(9, 10), gcra(3, 10, 9)] {
        assert_eq!(used(limit, Some(NOW + 7)).used(NOW), 6);
        assert!(used(limit, Some(NOW)).is_new(NOW));
    }
}

/// A limiter that would refuse for ever under its old limit must free its units by the new one.
#[test]
fn a_refused_request_with_a_faster_limit_ends_an_endless_wait() {
    let faster = gcra(100, 60 * SECOND, 20);
    let olds = [
        Limiter::with_used(&fixed(100, 0), 50, None, NOW),
        Limiter::with_used(&gcra(0, 60 * SECOND, 0), 50, None, NOW),
        Limiter::with_used(&gcra(1, 86400 * SECOND, 50), 50, None, NOW),
        Limiter::with_used(&sliding(100, 86400 * SECOND), 50, None, NOW),
    ];
    for old in olds {
        let mut stored = Stored(Some(old));
        let decision = stored.decide(&faster, 1, NOW);
        // 31 units must become free, at 100 per minute.
        assert_eq!((decision.allowed, decision.retry), (false, Some(31 * 60 * SECOND / 100)));
        assert!(!stored.decide(&faster, 1, NOW + 31 * 60 * SECOND / 100 - 1).allowed);
        assert!(stored.decide(&faster, 1, NOW + 31 * 60 * SECOND / 100).allowed);
    }
}

/// Refused requests under two limits by turns must not keep the units used, whatever they cost.
#[test]
fn limits_that_alternate_free_units_no_later() {
    let limits = [
        fixed(10, 60 * SECOND),
        fixed(5, 3600 * SECOND),
        sliding(10, 40 * SECOND),
        sliding(5, 70 * SECOND),
        gcra(100, 3600 * SECOND, 100),
        gcra(1, 30 * SECOND, 10),
        gcra(100, 60 * SECOND, 100),
    ];
    let requests: Vec<(Limit, u64)> = limits
        .iter()
        .flat_map(|limit| [1, 3, limit.capacity()].map(|cost| (*limit, cost)))
        .collect();
    for (first, cost) in &requests {
        for (second, other_cost) in &requests {
            let mut stored = Stored(Some(Limiter::with_used(first, first.capacity(), None, NOW)));
            let mut frees = stored.limiter().reset(NOW).map(|wait| NOW + wait);
            for turn in 0..50_u64 {
                let now = NOW + turn * SECOND / 2;
                let (limit, cost) =
                    if turn % 2 == 0 { (second, other_cost) } else { (first, cost) };
                let decision = stored.decide(limit, *cost, now);
                if decision.allowed {
                    break;
                }
                let reset = decision.reset.map(|wait| now + wait);
                let case = format!("{first:?} {cost} {second:?} {other_cost}, turn {turn}");
                // Rounding may add a nanosecond in each turn.
                assert!(reset <= frees.map(|at| at + turn + 1), "{case}: {reset:?} {frees:?}");
                frees = frees.min(reset);
            }
        }
    }
}
