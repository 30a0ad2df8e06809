//! Blocks of generic containers that a global keeps: their types are in the names of inlined
//! functions. Others hold themselves, which their counts prove.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

pub struct Order {
    id: u64,
    amount: [u64; 3],
}

pub struct Session {
    orders: Vec<Box<Order>>,
}

struct Alone(std::cell::RefCell<Option<Rc<Alone>>>);

static CACHE: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

#[inline(never)]
fn open(id: u64) {
    let mut orders = Vec::new();
    for number in 0..4 {
        orders.push(Box::new(Order { id: number, amount: [id; 3] }));
    }
    CACHE.lock().unwrap().push(Arc::new(Session { orders }));
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
    let sum = |session: &Arc<Session>| session.orders.iter().map(|order| order.id + order.amount[1]).sum::<u64>();
    println!("{}", CACHE.lock().unwrap().iter().map(sum).sum::<u64>());
}
