//! Deaths, rollouts and ends, in every order that matters.

use std::sync::Arc;

use super::*;

struct World {
    now: Instant,
    supervisor: State<u32>,
}

type Effects = Vec<Effect<u32>>;

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            supervisor: State::new(None, now),
        }
    }

    /// Creates a supervisor with a running worker that serves `pods` pods of one socket each.
    fn serving(pods: u32) -> Self {
        let mut world = Self::new();
        world.event(begin(false));
        world.event(Event::FromWorker(Record::Started, None));
        world.event(Event::FromWorker(Record::Accepting, None));
        for number in 0..pods {
            for (record, fd) in pod(number) {
                assert_eq!(world.event(Event::FromWorker(record, fd)), []);
            }
        }
        world
    }

    fn event(&mut self, event: Event<u32>) -> Effects {
        self.supervisor.on_event(event, self.now)
    }

    fn after(&mut self, time: Duration) {
        self.now += time;
    }

    fn wait(&mut self) -> Duration {
        let due = self.supervisor.deadline().unwrap();
        let wait = due.saturating_duration_since(self.now);
        self.now = due;
        wait
    }
}

fn begin(predecessor: bool) -> Event<u32> {
    Event::Begin {
        predecessor,
        holder: false,
    }
}

fn pod(number: u32) -> Vec<(Record, Option<u32>)> {
    let head = Record::Item {
        key: format!("pod-{number}").into(),
        about: Arc::from(&b"about"[..]),
        descriptors: 2,
    };
    let descriptors = [number * 10, number * 10 + 1];
    std::iter::once((head, None))
        .chain(descriptors.map(|fd| (Record::Descriptor, Some(fd))))
        .collect()
}

fn release(number: u32) -> Record {
    Record::Release {
        key: format!("pod-{number}").into(),
    }
}

fn start(pods: u32, accept: Accept) -> Effects {
    let sent = (0..pods).flat_map(pod);
    let sent = sent.map(|(record, fd)| Effect::ToWorker(record, fd));
    std::iter::once(Effect::Start)
        .chain(sent)
        .chain([Effect::ToWorker(Record::Accept(accept), None)])
        .collect()
}

#[test]
fn killed_worker_is_replaced_at_once_with_the_whole_handover() {
    let mut world = World::serving(2);
    let killed = Ended::Signal(9);
    let mut effects = world.event(Event::Ended(killed));
    let report = effects.remove(0);
    let wait = Duration::ZERO;
    assert_eq!(
        report,
        Effect::Report {
            ended: killed,
            wait
        }
    );
    assert_eq!(effects, start(2, Accept::Now));
}

#[test]
fn however_often_it_dies_the_next_one_comes_within_half_a_second() {
    let mut world = World::serving(1);
    world.event(Event::Ended(Ended::Signal(9)));
    let mut waits = Vec::new();
    for _ in 0..10 {
        assert_eq!(world.event(Event::Ended(Ended::Code(101))).len(), 1);
        assert_eq!(world.event(Event::Tick), []);
        waits.push(world.wait().as_millis());
        assert_eq!(world.event(Event::Tick), start(1, Accept::Now));
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 500, 500, 500, 500]);
    world.after(STABLE);
    let effects = world.event(Event::Ended(Ended::Signal(6)));
    assert_eq!(
        effects[1..],
        start(1, Accept::Now),
        "a stable one is replaced at once"
    );
}

#[test]
fn what_a_worker_keeps_is_the_next_ones_alone_unless_they_die_of_it() {
    let file = Record::File(0);
    let mut world = World::serving(0);
    world.event(Event::FromWorker(file.clone(), Some(7)));
    let sent = Effect::ToWorker(file.clone(), Some(7));
    let mut given = Vec::new();
    for _ in 0..5 {
        let mut effects = world.event(Event::Ended(Ended::Signal(6)));
        if world.supervisor.deadline().is_some() {
            world.wait();
            effects = world.event(Event::Tick);
        }
        given.push(effects.contains(&sent));
    }
    assert_eq!(given, [true, true, true, false, false]);
    world.event(Event::FromWorker(file, Some(7)));
    let successor = world.event(Event::Successor);
    assert_eq!(
        successor,
        [Effect::ToSuccessor(Record::Accept(Accept::WhenReady), None)]
    );
}

#[test]
fn a_worker_that_never_started_ends_the_supervisor_with_its_code() {
    let mut world = World::new();
    assert_eq!(world.event(begin(false)), start(0, Accept::Now));
    assert_eq!(world.event(Event::Ended(Ended::Code(1))), [Effect::Exit(1)]);
}

#[test]
fn worker_that_exits_on_request_ends_the_supervisor() {
    let mut world = World::serving(1);
    assert_eq!(world.event(Event::Terminate), [Effect::Terminate]);
    assert_eq!(world.event(Event::Terminate), [Effect::Terminate]);
    assert_eq!(world.event(Event::Ended(Ended::Code(0))), [Effect::Exit(0)]);
    // Asked over the admin server.
    let mut world = World::serving(1);
    assert_eq!(world.event(Event::Ended(Ended::Code(0))), [Effect::Exit(0)]);
    // Killed while ending, when a successor has taken over: nothing is left to be taken care of.
    let mut world = World::serving(1);
    world.event(Event::Successor);
    world.event(Event::FromSuccessor(Record::Accepting));
    world.event(Event::Terminate);
    assert_eq!(
        world.event(Event::Ended(Ended::Signal(9))),
        [Effect::Exit(137)]
    );
}

#[test]
fn worker_killed_while_it_waits_for_a_successor_is_replaced() {
    let mut world = World::serving(1);
    world.event(Event::Terminate);
    let effects = world.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(effects[1..], start(1, Accept::Now));
    assert_eq!(
        world.event(Event::FromWorker(Record::Started, None)),
        [Effect::Terminate]
    );
}

#[test]
fn supervisor_terminated_between_workers_ends() {
    let mut world = World::serving(1);
    world.event(Event::Ended(Ended::Signal(9)));
    world.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(world.event(Event::Terminate), [Effect::Exit(0)]);
}

#[test]
fn a_new_proxy_takes_over_when_it_is_ready_and_the_old_one_stops_then() {
    let mut old = World::serving(1);
    let mut new = World::new();
    assert_eq!(new.event(begin(true)), []);
    let mut sent = old.event(Event::Successor);
    assert_eq!(
        sent.pop(),
        Some(Effect::ToSuccessor(Record::Accept(Accept::WhenReady), None))
    );
    for effect in sent {
        let Effect::ToSuccessor(record, fd) = effect else {
            panic!("{effect:?}")
        };
        assert_eq!(new.event(Event::FromPredecessor(record, fd)), []);
    }
    let end = Event::FromPredecessor(Record::Accept(Accept::WhenReady), None);
    assert_eq!(new.event(end), start(1, Accept::WhenReady));
    new.event(Event::FromWorker(Record::Started, None));
    // Its worker dies before it is ready: the old one still takes the connections.
    let effects = new.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(effects[1..], start(1, Accept::WhenReady));
    assert_eq!(
        new.event(Event::FromWorker(Record::Accepting, None)),
        [Effect::ToPredecessor(Record::Accepting)]
    );
    assert_eq!(
        old.event(Event::FromSuccessor(Record::Accepting)),
        [Effect::ToWorker(Record::Accept(Accept::Paused), None)]
    );
    // From here on each is what it is, whatever dies.
    old.after(STABLE);
    let effects = old.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(effects[1..], start(1, Accept::Paused));
    new.after(STABLE);
    let effects = new.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(effects[1..], start(1, Accept::Now));
    assert_eq!(new.event(Event::PredecessorGone), []);
}

#[test]
fn when_the_new_proxy_goes_the_old_one_takes_connections_again() {
    let mut old = World::serving(1);
    old.event(Event::Successor);
    assert_eq!(old.event(Event::SuccessorGone), []);
    old.event(Event::Successor);
    old.event(Event::FromSuccessor(Record::Accepting));
    assert_eq!(
        old.event(Event::SuccessorGone),
        [Effect::ToWorker(Record::Accept(Accept::Now), None)]
    );
    // A terminated one does not.
    old.event(Event::Successor);
    old.event(Event::FromSuccessor(Record::Accepting));
    old.event(Event::Terminate);
    assert_eq!(old.event(Event::SuccessorGone), []);
}

#[test]
fn a_predecessor_that_dies_or_tells_nothing_is_not_waited_for() {
    let mut new = World::new();
    new.event(begin(true));
    let (head, _) = pod(0).remove(0);
    new.event(Event::FromPredecessor(head, None));
    assert_eq!(new.event(Event::PredecessorGone), start(0, Accept::Now));

    let mut new = World::new();
    new.event(begin(true));
    assert_eq!(new.wait(), SENT_WITHIN);
    assert_eq!(new.event(Event::Tick), start(0, Accept::WhenReady));
    // Dying later, it leaves the connections to the new one.
    assert_eq!(
        new.event(Event::PredecessorGone),
        [Effect::ToWorker(Record::Accept(Accept::Now), None)]
    );
}

/// Returns the items of a standby after these effects.
fn standby_of(effects: Effects) -> Handover<u32> {
    let mut held = Handover::default();
    for effect in effects {
        let Effect::ToStandby(record, fd) = effect else {
            panic!("{effect:?}")
        };
        held.apply(&record, fd).unwrap();
    }
    held
}

#[test]
fn standby_follows_the_handover_and_serves_it_at_once() {
    let mesh = Record::File(0);
    let mut first = World::serving(1);
    first.event(Event::FromWorker(mesh.clone(), Some(7)));
    let mut parts = pod(1);
    let (last, socket) = parts.pop().unwrap();
    for (record, fd) in parts {
        first.event(Event::FromWorker(record, fd));
    }
    // One that comes in the middle of a pod hears of it when it is whole.
    let mut sent = first.event(Event::Standby);
    assert_eq!(
        sent.last(),
        Some(&Effect::ToStandby(Record::Accept(Accept::Paused), None))
    );
    sent.extend(first.event(Event::FromWorker(last, socket)));
    sent.extend(first.event(Event::FromWorker(release(0), None)));
    let files = Record::File(1);
    sent.extend(first.event(Event::FromWorker(files.clone(), Some(8))));
    let stray = first.event(Event::FromWorker(Record::Descriptor, Some(9)));
    assert!(matches!(&stray[..], [Effect::Odd(_)]), "{stray:?}");

    let mut second = World::new();
    second.supervisor = State::new(Some(standby_of(sent)), second.now);
    let expected: Effects = std::iter::once(Effect::Start)
        .chain(
            pod(1)
                .into_iter()
                .map(|(record, fd)| Effect::ToWorker(record, fd)),
        )
        .chain([(mesh, 7), (files, 8)].map(|(file, fd)| Effect::ToWorker(file, Some(fd))))
        .chain([Effect::ToWorker(Record::Accept(Accept::Now), None)])
        .collect();
    assert_eq!(second.event(begin(false)), expected);
    // The first one's worker may still have its ports.
    let effects = second.event(Event::Ended(Ended::Code(1)));
    assert_eq!(effects[1..], expected);
    // Nobody listens any more.
    first.event(Event::StandbyGone);
    assert_eq!(first.event(Event::FromWorker(release(1), None)), []);
}

#[test]
fn a_standby_takes_over_only_from_a_started_process() {
    let mut world = World::new();
    world.event(begin(false));
    assert_eq!(world.event(Event::Standby), []);
    let sent = [Effect::ToStandby(Record::Accept(Accept::Paused), None)];
    assert_eq!(world.event(Event::FromWorker(Record::Started, None)), sent);
    world.event(Event::Ended(Ended::Signal(9)));
    assert_eq!(world.event(Event::FromWorker(Record::Started, None)), []);
}

#[test]
fn a_standby_that_finds_a_successor_at_work_takes_over_from_that() {
    let mut held = Handover::default();
    for (record, fd) in pod(0) {
        held.apply(&record, fd).unwrap();
    }
    let mut world = World::new();
    world.supervisor = State::new(Some(held), world.now);
    assert_eq!(world.event(begin(true)), []);
    for (record, fd) in pod(1) {
        assert_eq!(world.event(Event::FromPredecessor(record, fd)), []);
    }
    let end = Event::FromPredecessor(Record::Accept(Accept::WhenReady), None);
    let mut expected = start(2, Accept::WhenReady);
    expected.drain(1..4);
    assert_eq!(world.event(end), expected);
}

#[test]
fn what_does_not_fit_is_reported_and_changes_nothing() {
    let mut world = World::serving(1);
    let effects = world.event(Event::FromWorker(Record::Descriptor, Some(7)));
    assert!(matches!(&effects[..], [Effect::Odd(_)]), "{effects:?}");
    assert_eq!(world.supervisor.items(), 1);
}

#[test]
fn third_generation_takes_over_from_one_still_preparing() {
    let mut middle = World::new();
    middle.event(begin(true));
    for (record, fd) in pod(0) {
        middle.event(Event::FromPredecessor(record, fd));
    }
    let end = Event::FromPredecessor(Record::Accept(Accept::WhenReady), None);
    assert_eq!(middle.event(end), start(1, Accept::WhenReady));
    assert_eq!(middle.event(Event::Successor).len(), 4);
    let effects = middle.event(Event::FromSuccessor(Record::Accepting));
    let expected = [
        Effect::ToWorker(Record::Accept(Accept::Paused), None),
        Effect::ToPredecessor(Record::Accepting),
    ];
    assert_eq!(effects, expected);
}

#[test]
fn one_that_drains_stays_superseded_when_its_successor_has_gone_too() {
    let mut world = World::serving(1);
    world.event(Event::Successor);
    world.event(Event::FromSuccessor(Record::Accepting));
    world.event(Event::Terminate);
    assert_eq!(world.event(Event::SuccessorGone), []);
    assert_eq!(
        world.event(Event::Ended(Ended::Signal(9))),
        [Effect::Exit(137)],
        "its pods are another's"
    );
}

fn to_holder(pods: std::ops::Range<u32>) -> Effects {
    let sent = pods.flat_map(pod);
    sent.map(|(record, fd)| Effect::ToHolder(record, fd))
        .chain([Effect::ToHolder(Record::Accept(Accept::Paused), None)])
        .collect()
}

#[test]
fn holder_gets_items_without_files_from_the_serving_supervisor() {
    let mut world = World::serving(1);
    world.event(Event::FromWorker(Record::File(1), Some(7)));
    assert_eq!(world.event(Event::Holder), to_holder(0..1));
    assert_eq!(world.event(Event::FromWorker(Record::File(1), Some(8))), []);
    let sent = [Effect::ToHolder(release(0), None)];
    assert_eq!(world.event(Event::FromWorker(release(0), None)), sent);
    // Its successor's are held from now on.
    world.event(Event::Successor);
    world.event(Event::FromSuccessor(Record::Accepting));
    for (record, fd) in pod(1) {
        assert_eq!(world.event(Event::FromWorker(record, fd)), []);
    }
    let mut effects = world.event(Event::SuccessorGone);
    assert_eq!(
        effects.remove(0),
        Effect::ToWorker(Record::Accept(Accept::Now), None)
    );
    assert_eq!(effects, to_holder(1..2));
    // A holder that was started anew is sent everything again.
    assert_eq!(world.event(Event::HolderGone), []);
    assert_eq!(world.event(Event::Holder), to_holder(1..2));
}

#[test]
fn where_nobody_else_is_left_the_holder_gives_back_what_it_holds() {
    let with_holder = || Event::Begin {
        predecessor: false,
        holder: true,
    };
    let mut world = World::new();
    assert_eq!(world.event(with_holder()), []);
    for (record, fd) in pod(0) {
        assert_eq!(world.event(Event::FromHolder(record, fd)), []);
    }
    let end = Event::FromHolder(Record::Accept(Accept::Paused), None);
    assert_eq!(world.event(end), start(1, Accept::Now));
    let late = Event::FromHolder(release(0), None);
    assert_eq!(world.event(late), []);
    assert_eq!(world.supervisor.items(), 1);
    assert_eq!(
        world.event(Event::FromWorker(Record::Accepting, None)),
        to_holder(0..1)
    );
    // A dead or silent one is not waited for.
    let mut world = World::new();
    world.event(with_holder());
    assert_eq!(world.event(Event::HolderGone), start(0, Accept::Now));
    let mut world = World::new();
    world.event(with_holder());
    assert_eq!(world.wait(), SENT_WITHIN);
    assert_eq!(world.event(Event::Tick), start(0, Accept::Now));
}
