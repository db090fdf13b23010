{-# LANGUAGE BangPatterns #-}
-- A node in small: much live data that is updated all the time, busy and idle phases, and a deadline.
--
-- A beat is due on a fixed grid of the monotonic clock. It looks at some of the data and says how
-- late it was done. Work and beats run in threads of their own, on the heap of one process, so that
-- what the collector stops is what is late.
--
-- Arguments: --live-mb N, --seconds N, --beats-per-second N, --busy N and --idle N (seconds).
module Main (main) where

import Control.Concurrent
import Control.Monad
import Data.Bits
import qualified Data.IntMap.Strict as Map
import Data.IORef
import Data.Word
import GHC.Clock (getMonotonicTimeNSec)
import System.Environment
import System.Exit
import System.IO
import System.Posix.Signals
import Text.Printf

-- | A record of the state: three words of payload.
data Entry = Entry !Word64 !Word64 !Word64

-- | xorshift64: the same numbers in every run.
next :: Word64 -> Word64
next x0 = x3
  where
    x1 = x0 `xor` (x0 `shiftL` 13)
    x2 = x1 `xor` (x1 `shiftR` 7)
    x3 = x2 `xor` (x2 `shiftL` 17)

type State = Map.IntMap Entry

-- | Bytes that an entry takes with its part of the map: measured, for this compiler.
bytesPerEntry :: Int
bytesPerEntry = 104

build :: Int -> State
build count = go 0 88172645463325252 Map.empty
  where
    go !i !r !m
      | i >= count = m
      | otherwise = let r' = next r in go (i + 1) r' (Map.insert i (Entry r r' (fromIntegral i)) m)

-- | Changes so many entries.
change :: Int -> Int -> Word64 -> State -> (Word64, State)
change 0 _ !r !m = (r, m)
change n count r m = change (n - 1) count r' (Map.insert key (Entry r r' 0) m)
  where
    r' = next r
    key = fromIntegral (r' `mod` fromIntegral count)

-- | Looks at so many entries.
look :: Int -> Int -> Word64 -> State -> Word64 -> Word64
look 0 _ _ _ !sum' = sum'
look n count r m sum' = look (n - 1) count r' m (sum' + found)
  where
    r' = next r
    found = case Map.lookup (fromIntegral (r' `mod` fromIntegral count)) m of
      Just (Entry a _ _) -> a
      Nothing -> 0

option :: [String] -> String -> Double -> Double
option (name : value : rest) wanted other
  | name == wanted = read value
  | otherwise = option (value : rest) wanted other
option _ _ other = other

main :: IO ()
main = do
  arguments <- getArgs
  let number = option arguments
      count = round (number "--live-mb" 222 * 1.0e6) `div` bytesPerEntry
      seconds = number "--seconds" 3600 :: Double
      beats = number "--beats-per-second" 20 :: Double
      busy = number "--busy" 2
      idle = number "--idle" 2
      -- A large state changes by as much as a small one, in relation.
      perStep = max 1 (count `div` 400)
  hSetBuffering stdout LineBuffering
  done <- newEmptyMVar
  forM_ [sigTERM, sigINT] $ \signal -> installHandler signal (Catch (void (tryPutMVar done ()))) Nothing
  state <- newIORef $! build count
  start <- getMonotonicTimeNSec
  putStrLn "ready"
  let elapsed = do
        now <- getMonotonicTimeNSec
        pure (fromIntegral (now - start) / 1.0e9 :: Double)
  _ <- forkIO $ do
    let work !r = do
          at <- elapsed
          let phase = at - fromIntegral (floor (at / (busy + idle)) :: Int) * (busy + idle)
          if phase < busy
            then do
              m <- readIORef state
              let (r', m') = change perStep count r m
              writeIORef state $! m'
              threadDelay 8000
              work r'
            else do
              threadDelay (round ((busy + idle - phase) * 1.0e6))
              work r
    work 88172645463325252
  _ <- forkIO $ forM_ [1 :: Int ..] $ \beat -> do
    let due = fromIntegral beat / beats
    now <- elapsed
    when (due > now) $ threadDelay (round ((due - now) * 1.0e6))
    m <- readIORef state
    let !found = look 200 count (fromIntegral beat + 1) m 0
    at <- elapsed
    printf "beat %d late %.3f ms (%d)\n" beat ((at - due) * 1000) (found .&. 1)
  _ <- forkIO $ do
    threadDelay (round (seconds * 1.0e6))
    void (tryPutMVar done ())
  takeMVar done
  hFlush stdout
  exitSuccess
