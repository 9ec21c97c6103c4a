"""The script that writes entries and the cursor in one step, or nothing."""

import hashlib

# KEYS: the cursor, whose writers may write, then the streams. ARGV: who writes, for whom (nothing
# where nobody claims), the number of this step, the cursor behind
# it, what stands around an event's id in a cursor inside of it, about how many entries a stream
# keeps (0: all), how many words a message has, and these: which of the streams, and the values of
# the fields. A table of them per entry would cost a quarter more.
# Whether a key is a stream is asked before anything is written; memory and disk can only refuse
# the first entry. A step ends in front of a later entry that is refused: the cursor must not pass
# it before somebody has stored it, and what was added cannot be undone. Each answer tells where the
# step has ended, also to a writer that lost the first one.
WRITE = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'step', 'cursor')
if not held[1] then return {'lost'} end
if held[1] ~= ARGV[1] then return {'fenced'} end
if ARGV[2] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[2] then return {'fenced'} end
local step = tonumber(held[2] or '0')
if step == tonumber(ARGV[3]) then return {'held', held[3]} end
if step ~= tonumber(ARGV[3]) - 1 then return {'lost'} end
local refused = {'refused'}
for i = 3, #KEYS do
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) == 'table' and length['err'] then
    if not string.find(length['err'], 'WRONGTYPE') then return length end
    refused[#refused + 1] = i - 3
    refused[#refused + 1] = length['err']
  end
end
if #refused > 1 then return refused end
local add, most, words = redis.pcall, tonumber(ARGV[7]), tonumber(ARGV[8])
local cursor = ARGV[4]
for i = 9, #ARGV, words do
  local key, event, id, name = KEYS[ARGV[i] + 3], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local more = words == 5 and ARGV[i + 4] ~= '' and ARGV[i + 4]
  local answer
  if not more and most == 0 then
    answer = add('XADD', key, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name)
  elseif not more then
    answer = add('XADD', key, 'MAXLEN', '~', most, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name)
  elseif most == 0 then
    answer = add('XADD', key, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name, 'df-headers', more)
  else
    answer = add('XADD', key, 'MAXLEN', '~', most, '*', 'event', event, 'event_id', id,
      'idempotency_key', id, 'df-key', name, 'df-headers', more)
  end
  if type(answer) == 'table' and answer['err'] then
    if i == 9 then return answer end
    cursor = ARGV[5] .. string.gsub(ARGV[i - words + 2], '-', '') .. ARGV[6]
    break
  end
end
redis.call('HSET', KEYS[1], 'step', ARGV[3], 'cursor', cursor)
return {'written', cursor}
""".strip()

WRITE_SHA = hashlib.sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
"""How Redis names the script once it knows it."""
