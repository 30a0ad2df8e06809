//! A leak whose function the optimizer inlines into a thread's start, so that no physical function
//! is the program's own.

mod metrics {
    pub fn feed(store: &mut Vec<Vec<u8>>, count: usize) {
        for at in 0..count {
            store.push(vec![at as u8; 400]);
        }
    }
}

fn main() {
    let thread = std::thread::spawn(|| {
        let mut store = Vec::new();
        for _ in 0..200 {
            metrics::feed(&mut store, 100);
            std::thread::sleep(std::time::Duration::from_millis(6));
        }
        std::mem::forget(store);
    });
    thread.join().expect("the thread ends");
}
