//! Files of measurements: recognised and read, or refused, whatever is in them.

use compare::{
    figure::NAME_BYTES_MAX,
    input::{READINGS_MAX, parse},
};

pub(crate) fn test_one_input(bytes: &[u8]) {
    if let Ok((_, readings)) = parse(bytes) {
        assert!(readings.list.len() <= READINGS_MAX);
        // A shortened name states its original length.
        assert!(readings.list.iter().all(|reading| reading.name.len() <= NAME_BYTES_MAX + 32));
        assert!(readings.list.iter().all(|reading| reading.value.is_none_or(f64::is_finite)));
    }
}
