//! Drops large arrays on a thread for which no other one waits.

/// Drops a value with much memory on a thread of its own. The kernel takes some tenths of a second for gigabytes of small pages. If the
/// system has no thread left, it is dropped here.
#[allow(
    clippy::disallowed_methods,
    reason = "what the thread does shows in nothing but time"
)]
pub fn drop_aside<T: Send + 'static>(value: T) {
    let dropping = std::thread::Builder::new().name("pages-gone".into());
    let _ = dropping.spawn(move || drop(value)); // without a thread, this drops the closure and the value here
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[test]
    fn value_dropped_aside_is_gone_soon() {
        let shared = Arc::new(());
        drop_aside((shared.clone(), crate::Pages::<u64>::zeroed(1 << 20)));
        while Arc::strong_count(&shared) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
