//! Where a panic happened: `catch_unwind` gives its text only (P39).
//!
//! The location comes from the panic hook. Ours is set once per process, notes the location for the panicking thread
//! and calls the hook that was there before, so what is printed stays as it was.

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// From now on the location of a panic is known to [`describe`].
pub(super) fn watch() {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            let place = panicked.location().map(ToString::to_string);
            // A thread that is being taken down has no place to note it in.
            let _ = LAST.try_with(|last| {
                if let Ok(mut last) = last.try_borrow_mut() {
                    *last = place;
                }
            });
            before(panicked);
        }));
    });
}

/// Text and location of a panic that was just caught on this thread.
pub(super) fn describe(panic: &(dyn Any + Send)) -> (String, String) {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without text".to_owned(),
    };
    let place = LAST.with(|last| last.borrow_mut().take());
    (text.chars().take(1_000).collect(), place.unwrap_or_else(|| "an unknown place".to_owned()))
}
