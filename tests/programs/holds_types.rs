//! Blocks of generic containers that a global keeps: their types are in the names of inlined
//! functions. Others hold themselves, which their counts prove.

use std::rc::Rc;

pub struct Order {
    id: u64,
    amount: [u64; 3],
}

pub struct Session {
    orders: Vec<Box<Order>>,
}

struct Alone(std::cell::RefCell<Option<Rc<Alone>>>);

struct Cache(std::cell::RefCell<Vec<Rc<Session>>>);
// There is one thread.
unsafe impl Sync for Cache {}

static CACHE: Cache = Cache(std::cell::RefCell::new(Vec::new()));

#[inline(never)]
fn open(id: u64) {
    let mut orders = Vec::new();
    for number in 0..4 {
        orders.push(Box::new(Order { id: number, amount: [id; 3] }));
    }
    CACHE.0.borrow_mut().push(Rc::new(Session { orders }));
}

#[inline(never)]
fn hold_itself() {
    let alone = Rc::new(Alone(std::cell::RefCell::new(None)));
    *alone.0.borrow_mut() = Some(Rc::clone(&alone));
}

fn main() {
    for _ in 0..50 {
        hold_itself();
    }
    for id in 0..100 {
        open(id);
    }
    let sum = |session: &Rc<Session>| session.orders.iter().map(|order| order.id + order.amount[1]).sum::<u64>();
    println!("{}", CACHE.0.borrow().iter().map(sum).sum::<u64>());
}
