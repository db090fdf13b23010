//! The power button, as reported by the kernel's input devices.

use std::{
    fs::{self, File},
    io::Read,
    thread,
};

use super::print_line;

/// An event: two words of time, two halves, one word.
const EVENT_BYTES: usize = 24;
const KEY: u16 = 1;
const POWER: u16 = 116;
/// A machine has two or three.
const DEVICES_MAX: usize = 16;

/// Calls `pressed` for every press of the button, from another thread.
pub(super) fn watch(pressed: impl Fn() + Clone + Send + 'static) {
    let mut watched = 0;
    for entry in fs::read_dir("/dev/input").into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("event") || watched == DEVICES_MAX {
            continue;
        }
        let Ok(device) = File::open(entry.path()) else { continue };
        let pressed = pressed.clone();
        let started =
            thread::Builder::new().stack_size(64 << 10).spawn(move || listen(device, pressed));
        watched += usize::from(started.is_ok());
    }
    if watched == 0 {
        print_line("there is no power button; only cutting the power ends this machine");
    }
}

fn listen(mut device: File, pressed: impl Fn()) {
    let mut event = [0; EVENT_BYTES];
    while device.read_exact(&mut event).is_ok() {
        if is_press(&event) {
            pressed();
        }
    }
}

fn is_press(event: &[u8; EVENT_BYTES]) -> bool {
    let half = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
    (half(16), half(18), half(20)) == (KEY, POWER, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_press_of_the_power_button_counts() {
        let event = |kind: u16, code: u16, value: u16| {
            let mut event = [0; EVENT_BYTES];
            for (at, half) in [(16, kind), (18, code), (20, value)] {
                event[at..at + 2].copy_from_slice(&half.to_ne_bytes());
            }
            event
        };
        assert!(is_press(&event(KEY, POWER, 1)));
        for other in [event(KEY, POWER, 0), event(KEY, 30, 1), event(0, 0, 0)] {
            assert!(!is_press(&other));
        }
    }
}
