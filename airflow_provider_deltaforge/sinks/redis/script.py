"""The script that writes entries and the cursor in one step, or nothing."""

import hashlib

# KEYS: the cursor, then the streams. ARGV: who writes, the number of this step, the cursor behind
# it, about how many entries a stream keeps (0: all), then five words per message: which of the
# streams, and the values of the fields.
# Whether a key is a stream is asked before anything is written; memory and disk can only refuse
# the first entry. What a later entry meets is told with its number: it cannot be undone.
WRITE = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'step', 'cursor')
if not held[1] then return {'lost'} end
if held[1] ~= ARGV[1] then return {'fenced'} end
local step = tonumber(held[2] or '0')
if step == tonumber(ARGV[2]) and held[3] == ARGV[3] then return {'held'} end
if step ~= tonumber(ARGV[2]) - 1 then return {'lost'} end
local refused = {'refused'}
for i = 2, #KEYS do
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) == 'table' and length['err'] then
    if not string.find(length['err'], 'WRONGTYPE') then return length end
    refused[#refused + 1] = i - 2
    refused[#refused + 1] = length['err']
  end
end
if #refused > 1 then return refused end
local most = tonumber(ARGV[4])
local told = {'written'}
for i = 5, #ARGV, 5 do
  local entry = {'XADD', KEYS[ARGV[i] + 2]}
  if most > 0 then
    entry[3], entry[4], entry[5] = 'MAXLEN', '~', most
  end
  local n = #entry
  entry[n + 1], entry[n + 2], entry[n + 3] = '*', 'event', ARGV[i + 1]
  entry[n + 4], entry[n + 5] = 'event_id', ARGV[i + 2]
  entry[n + 6], entry[n + 7] = 'idempotency_key', ARGV[i + 2]
  entry[n + 8], entry[n + 9] = 'df-key', ARGV[i + 3]
  if ARGV[i + 4] ~= '' then
    entry[n + 10], entry[n + 11] = 'df-headers', ARGV[i + 4]
  end
  local answer = redis.pcall(unpack(entry))
  if type(answer) == 'table' and answer['err'] then
    if i == 5 then return answer end
    told[#told + 1] = (i - 5) / 5
    told[#told + 1] = answer['err']
  end
end
redis.call('HSET', KEYS[1], 'step', ARGV[2], 'cursor', ARGV[3])
return told
""".strip()

WRITE_SHA = hashlib.sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
"""How Redis names the script once it knows it."""
