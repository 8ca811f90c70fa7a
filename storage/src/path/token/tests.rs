//! Processes as far as the kernel can tell: tokens of their own before one line, on one clock.

use super::*;
use crate::path::line::Line;

const START: Needs = Needs { start: true, in_flight: false };
const MORE: Needs = Needs { start: true, in_flight: true };
const IN_FLIGHT: Needs = Needs { start: false, in_flight: true };
const NOTHING: Needs = Needs { start: false, in_flight: false };

struct Node {
    dir: tempfile::TempDir,
    clock: Clock,
}

impl Node {
    fn new() -> Self {
        Node { dir: tempfile::tempdir().unwrap(), clock: Clock::manual() }
    }

    fn process(&self) -> Arc<Token> {
        let line = Line::in_dir(self.dir.path().to_owned(), rustix::fs::makedev(8, 0)).unwrap();
        Arc::new(Token::new(line, self.clock.clone()))
    }

    fn seats<const N: usize>(&self, limit: Limit) -> [Seat; N] {
        std::array::from_fn(|_| Seat::in_dir(self.dir.path(), limit, &self.clock))
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

fn go<const N: usize>(seats: &[Seat; N], needs: Needs) -> [bool; N] {
    std::array::from_fn(|index| seats[index].ask(needs).go)
}

#[test]
fn one_at_a_time_and_whoever_has_nothing_to_do_gives_way() {
    let node = Node::new();
    let seats: [Seat; 2] = node.seats(Limit::AtMost(1));
    assert_eq!(go(&seats, START), [true, false]);
    assert_eq!(seats[1].ask(START).again, Some(LOOK));
    assert!(seats[0].ask(IN_FLIGHT).go);
    let idle = seats[0].ask(NOTHING).again.unwrap();
    node.clock.advance(idle / 2);
    assert!(!seats[1].ask(START).go, "he may have more in a moment");
    assert!(seats[0].ask(IN_FLIGHT).go);
    seats[0].ask(NOTHING);
    node.clock.advance(idle);
    assert_eq!(seats[0].ask(NOTHING), Answer { go: false, again: None });
    assert_eq!(go(&seats, START), [false, true]);
    assert_eq!(seats[1].waited(), idle + idle / 2);
}

#[test]
fn a_busy_process_gives_way_after_its_slice_and_not_before_what_is_in_flight_is_in() {
    let node = Node::new();
    let seats: [Seat; 2] = node.seats(Limit::AtMost(1));
    assert!(seats[0].ask(START).go);
    node.pass(600);
    assert!(seats[0].ask(MORE).go, "nobody waits");
    assert!(!seats[1].ask(START).go);
    node.pass(20);
    assert_eq!(seats[0].ask(MORE), Answer { go: false, again: Some(LOOK) });
    assert!(!seats[1].ask(START).go, "the other's transfers are not in");
    assert!(!seats[0].ask(START).go, "now they are");
    node.pass(1);
    assert_eq!(go(&seats, MORE), [false, true]);
    node.pass(500);
    assert_eq!([seats[1].ask(MORE).go, seats[1].ask(START).go], [false; 2]);
    node.pass(1);
    assert_eq!(go(&seats, MORE), [true, false], "they take turns");
}

#[test]
fn so_many_as_are_allowed_go_at_once_in_the_order_in_which_they_came() {
    let node = Node::new();
    let seats: [Seat; 4] = node.seats(Limit::AtMost(2));
    assert_eq!(go(&seats, START), [true, true, false, false]);
    node.pass(500);
    assert_eq!(go(&seats, IN_FLIGHT), [false, false, false, false]);
    // The first two leave the line; the last two, which no longer wanted to, did before.
    assert_eq!(go(&seats, START), [true, true, false, false]);
    node.pass(500);
    for seat in [3, 2] {
        assert!(!seats[seat].ask(START).go);
    }
    assert!(!seats[1].ask(START).go, "behind those who wait");
    node.pass(1);
    assert_eq!([3, 2].map(|seat| seats[seat].ask(START).go), [false, true], "first come");
    assert!(!seats[0].ask(START).go);
    node.pass(1);
    assert!(seats[3].ask(START).go);
}

#[test]
fn of_processes_that_allow_different_numbers_the_most_careful_decides() {
    let node = Node::new();
    let [easy]: [Seat; 1] = node.seats(Limit::AtMost(8));
    let [careful]: [Seat; 1] = node.seats(Limit::AtMost(1));
    assert!(easy.ask(MORE).go && !careful.ask(START).go);
    node.pass(500);
    assert!(!easy.ask(START).go);
    node.pass(1);
    assert!(careful.ask(MORE).go && !easy.ask(START).go);
    node.pass(500);
    assert!(!careful.ask(START).go);
    node.pass(1);
    assert!(easy.ask(START).go);
}

#[test]
fn paths_of_one_process_go_together_and_the_most_careful_decides() {
    let node = Node::new();
    let [other]: [Seat; 1] = node.seats(Limit::AtMost(8));
    let process = node.process();
    let careful = Seat::of(Arc::clone(&process), Limit::AtMost(1));
    let easy = Seat::of(process, Limit::AtMost(8));
    assert!(other.ask(START).go);
    assert_eq!([&careful, &easy].map(|seat| seat.ask(START).go), [false; 2]);
    assert!(other.ask(IN_FLIGHT).go);
    drop(careful);
    node.pass(500);
    assert!(!other.ask(NOTHING).go, "the careful path's ticket is in the line");
    node.pass(1);
    assert!(easy.ask(START).go);
    drop(easy);
    let process = node.process();
    let pair = [(); 2].map(|()| Seat::of(Arc::clone(&process), Limit::AtMost(1)));
    assert_eq!(go(&pair, MORE), [true; 2]);
    // It is held for as long as one of them has something to do, and given back when the last goes.
    node.pass(100);
    assert_eq!([pair[0].ask(NOTHING), pair[1].ask(MORE)].map(|answer| answer.go), [true; 2]);
    let [next]: [Seat; 1] = node.seats(Limit::AtMost(1));
    assert!(!next.ask(START).go);
    drop(pair);
    node.pass(1);
    assert!(next.ask(START).go);
}

#[test]
fn a_process_that_dies_is_forgotten_and_one_that_is_stopped_is_passed_in_time() {
    let node = Node::new();
    let seats: [Seat; 3] = node.seats(Limit::AtMost(1));
    assert_eq!(go(&seats, MORE), [true, false, false]);
    let [stopped, next, last] = seats;
    for _ in 0..299 {
        node.pass(100);
        assert!(!next.ask(START).go && !last.ask(START).go);
    }
    node.pass(100);
    assert!(!next.ask(START).go && !last.ask(START).go, "now they have seen enough");
    node.pass(1);
    assert_eq!([&next, &last].map(|seat| seat.ask(START).go), [true, false]);
    // Once passed, he holds nobody up again.
    node.pass(500);
    next.ask(START);
    node.pass(1);
    assert!(last.ask(START).go);
    node.pass(500);
    last.ask(START);
    node.pass(1);
    assert!(next.ask(START).go);
    drop((stopped, next));
    node.pass(1);
    assert!(last.ask(START).go);
}

#[test]
fn what_a_process_is_granted_is_its_part_of_the_device() {
    let node = Node::new();
    let seats: [Seat; 2] = node.seats(Limit::AtMost(1));
    assert_eq!([seats[0].share(), seats[1].share()], [1.0; 2]);
    for _ in 0..3000 {
        for seat in &seats {
            // What was in flight is in by the time it is looked at again.
            let has_it = seat.ask(START).go;
            seat.ask(if has_it { MORE } else { START });
        }
        node.pass(5);
    }
    for seat in &seats {
        assert!((0.3..0.7).contains(&seat.share()), "{}", seat.share());
    }
    assert!(seats[0].waited() > Duration::from_secs(4));
}

#[test]
fn how_many_pay_is_found_out_together() {
    let node = Node::new();
    let seats: [Seat; 4] = node.seats(Limit::Adapt);
    assert_eq!(go(&seats, START), [true, false, false, false]);
    let mut most = 0;
    // Each moves the same whoever else is at the device: it pays to have more of them there.
    for _ in 0..40_000 {
        let has_it: Vec<_> = seats.iter().filter(|seat| seat.ask(START).go).collect();
        has_it.iter().for_each(|seat| seat.moved(1 << 20));
        most = most.max(has_it.len());
        node.pass(5);
    }
    assert!(most >= 3, "{most}");
}

#[test]
fn without_a_line_everybody_goes() {
    let node = Node::new();
    let [seat]: [Seat; 1] = node.seats(Limit::AtMost(1));
    std::fs::remove_dir_all(node.dir.path()).unwrap();
    std::fs::write(node.dir.path(), "").unwrap();
    assert!(seat.ask(START).go);
    node.pass(600);
    assert!(seat.ask(START).go, "and tries again");
    std::fs::remove_file(node.dir.path()).unwrap();
    std::fs::create_dir(node.dir.path()).unwrap();
}

#[test]
fn a_line_that_was_removed_is_made_again_with_who_has_the_device() {
    let node = Node::new();
    let seats: [Seat; 2] = node.seats(Limit::AtMost(1));
    assert!(seats[0].ask(MORE).go);
    for user in std::fs::read_dir(node.dir.path()).unwrap() {
        std::fs::remove_dir_all(user.unwrap().path()).unwrap();
    }
    assert!(seats[1].ask(MORE).go, "it cannot know of the other");
    node.pass(500);
    assert!(!seats[0].ask(START).go, "which comes behind it now");
    assert!(!seats[1].ask(START).go);
    node.pass(1);
    assert_eq!(go(&seats, MORE), [true, false]);
}

#[test]
fn paths_that_ask_at_the_same_time_agree_on_it() {
    let node = Node { clock: Clock::system(), ..Node::new() };
    let process = node.process();
    let pair = [(); 2].map(|()| Seat::of(Arc::clone(&process), Limit::AtMost(1)));
    std::thread::scope(|threads| {
        for seat in &pair {
            threads.spawn(|| {
                for _ in 0..50_000 {
                    seat.ask(NOTHING);
                    seat.ask(START);
                }
            });
        }
    });
}

#[test]
fn two_processes_on_a_disk_that_seeks_come_back_to_one_at_a_time() {
    let node = Node::new();
    let seats: [Seat; 2] = node.seats(Limit::Adapt);
    let (mut alone, mut together) = (0, 0);
    for _ in 0..20_000 {
        let has_it: Vec<_> = seats.iter().filter(|seat| seat.ask(START).go).collect();
        *if has_it.len() == 1 { &mut alone } else { &mut together } += 1;
        let bytes = if has_it.len() == 1 { 1 << 20 } else { 1 << 18 };
        has_it.iter().for_each(|seat| seat.moved(bytes));
        node.pass(5);
    }
    assert!(alone > 2 * together, "{alone} {together}");
}

#[test]
fn who_is_left_alone_soon_knows_that_all_of_the_device_is_his() {
    let node = Node::new();
    let [seat, other]: [Seat; 2] = node.seats(Limit::AtMost(1));
    assert!(other.ask(START).go && !seat.ask(START).go);
    node.pass(20_000);
    assert!(seat.share() < 0.1);
    drop(other);
    assert!(seat.ask(START).go);
    assert!(seat.share() < 0.1, "{}", seat.share());
    node.pass(20_000);
    assert!(seat.share() > 0.9, "{}", seat.share());
}

#[test]
fn a_process_that_is_stopped_at_the_door_is_passed_in_time() {
    let node = Node::new();
    let [seat]: [Seat; 1] = node.seats(Limit::AtMost(1));
    let door = seat.token.line.close_door().unwrap().unwrap();
    seat.ask(START);
    seat.ask(NOTHING);
    node.pass(30_000);
    assert_eq!(seat.ask(START), Answer { go: false, again: Some(LOOK) });
    node.pass(29_999);
    assert!(!seat.ask(START).go);
    node.pass(1);
    assert!(seat.ask(START).go);
    drop(door);
}

#[test]
fn what_one_path_starts_just_now_is_known_to_the_others() {
    let node = Node::new();
    let process = node.process();
    let pair = [(); 2].map(|()| Seat::of(Arc::clone(&process), Limit::AtMost(1)));
    let [other]: [Seat; 1] = node.seats(Limit::AtMost(1));
    assert!(pair[0].ask(MORE).go && !other.ask(START).go);
    node.pass(499);
    // It may go, and has not yet told what it has made of that.
    assert!(pair[1].ask(START).go);
    node.pass(1);
    assert!(!pair[0].ask(NOTHING).go);
    assert!(!other.ask(START).go, "what was started is in flight");
    pair[1].ask(NOTHING);
    node.pass(1);
    assert!(other.ask(START).go);
}
